# render: tables into one page that opens offline, and every figure and table of it as a file.


rule render:
    """Write the page, its figures and tables; fail with what they leave out, once they are written."""
    input:
        published=EXPERIMENT.listed("config/published/*.csv"),
        registry=EXPERIMENT.shipped("config/devices.yaml"),
        template=EXPERIMENT.listed("report/*"),
        matrix="results/matrix.json",
        tables=rules.aggregate.output,
        analysed=rules.analyse.output,
    output:
        # The profiles' `keep-incomplete` leaves a page that is not whole where it is.
        page="results/report.html",
        summary="results/summary.txt",
        figures=report(
            directory("results/figures"),
            patterns=["{name}.svg", "{name}.csv"],
            caption="../../report/provenance.rst",
            category="Exhibits",
            labels={"exhibit": "{name}"},
        ),
    log:
        "results/logs/render.log",
    localrule: True
    params:
        code=EXPERIMENT.code,
        flags="",
    shell:
        "MPLBACKEND=agg python -P -m siliconprof.render.page --matrix {input.matrix:q} "
        "--tables {input.tables:q} {input.analysed:q} --registry {input.registry:q} "
        "--published {input.published:q} {params.flags} --output {output:q} 2>{log:q}"


use rule render as figures with:
    output:
        directory("results/print"),
    log:
        "results/logs/figures.log",
    params:
        flags="--print",


rule quick:
    """A first answer in half a minute: a few cells and a page of one screen."""
    input:
        EXPERIMENT.quick,
        registry=EXPERIMENT.shipped("config/devices.yaml"),
        claims=EXPERIMENT.shipped("config/claims.yaml"),
        published=EXPERIMENT.listed("config/published/*.csv"),
        template=EXPERIMENT.listed("report/*"),
        matrix="results/matrix.json",
    output:
        page="results/quick.html",
        folder=directory("results/quick"),
    log:
        "results/logs/quick.log",
    localrule: True
    params:
        code=EXPERIMENT.code,
    shell:
        "MPLBACKEND=agg python -P -m siliconprof.render.quick --matrix {input.matrix:q} "
        "--registry {input.registry:q} --claims {input.claims:q} --published {input.published:q} "
        "--page {output.page:q} --output-dir {output.folder:q} 2>{log:q}"
