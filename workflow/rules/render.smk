# render: tables into one page that opens offline, and every figure and table of it as a file.
#
# in:   results/tables/*.csv, results/matrix.json, config/published/*.csv, report/
# out:  results/report.html, results/{errors,summary,whole}.txt, results/figures/ (snakemake --report)
#       targets on request: quick: results/quick.html, results/quick/; figures: results/print/


rule render:
    """Write the page, its figures and tables."""
    input:
        published=EXPERIMENT.listed("config/published/*.csv"),
        registry=EXPERIMENT.shipped("config/devices.yaml"),
        template=EXPERIMENT.listed("report/*"),
        matrix="results/matrix.json",
        tables=rules.aggregate.output,
        analysed=rules.analyse.output,
    output:
        # Snakemake leaves the page where it is until the stage replaces it, so that one stands whatever
        # happens. What else there is goes before, so that after a failure the page is due again.
        page=update("results/report.html"),
        figures=report(
            directory("results/figures"),
            patterns=["{name}.svg", "{name}.csv"],
            caption="../../report/provenance.rst",
            category="Exhibits",
            labels={"exhibit": "{name}"},
        ),
        errors="results/errors.txt",
        summary="results/summary.txt",
    log:
        "results/logs/render.log",
    localrule: True
    params:
        code=EXPERIMENT.code,
        flags="",
    shell:
        "MPLBACKEND=agg python -P -m siliconprof.render.page --matrix {input.matrix:q} "
        "{params.flags} 2>{log:q}"


rule complete:
    """Fail, with its reasons, where the page leaves something out."""
    input:
        rules.render.output.errors,
    output:
        touch("results/whole.txt"),
    log:
        "results/logs/complete.log",
    localrule: True
    shell:
        "cat {input:q} | tee {log:q}; test ! -s {input:q} "
        "|| {{ echo 'the page stands, but for what could not be drawn' | tee -a {log:q}; exit 1; }}"


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
        "--output-dir {output.folder:q} 2>{log:q}"
