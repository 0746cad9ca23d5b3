# render: tables into figures and pages that open offline.
#
# in:   results/tables/*.csv, results/matrix.json, config/published/*.csv, report/
# out:  results/drawn/, all that the page says but its captions; results/{report,study}.html;
#       results/figures/, which `snakemake --report` shows; results/{errors,summary,whole}.txt;
#       on request (`make figures`) results/print/: every figure as SVG, PNG and PDF


rule draw:
    """Draw the figures and fill the tables."""
    input:
        published=EXPERIMENT.listed("config/published/*.csv"),
        registry=EXPERIMENT.shipped("config/devices.yaml"),
        matrix="results/matrix.json",
        tables=rules.aggregate.output,
        analysed=rules.analyse.output,
    output:
        directory("results/drawn"),
    log:
        "results/logs/draw.log",
    localrule: True
    conda:
        "../../envs/base.yaml"
    params:
        code=EXPERIMENT.code("render.draw"),
        flags="",
    shell:
        "python -m siliconprof.render.draw --matrix {input.matrix:q} --drawn {output:q} "
        "{params.flags} 2>{log:q}"


rule render:
    """Write both pages, with their captions and looks."""
    input:
        template=EXPERIMENT.listed("report/*"),
        drawn=rules.draw.output,
    output:
        # Snakemake leaves these where they are until the stage replaces them, so that a page stands
        # whatever happens. The list goes before, so that after a failure the page is due again.
        page=update("results/report.html"),
        study=update("results/study.html"),
        figures=report(
            update(directory("results/figures")),
            patterns=["{name}.svg", "{name}.csv"],
            caption="../../report/provenance.rst",
            category=EXPERIMENT.shown.category,
            subcategory=EXPERIMENT.shown.subcategory,
            labels=EXPERIMENT.shown.labels,
        ),
        errors="results/errors.txt",
        summary="results/summary.txt",
    log:
        "results/logs/render.log",
    localrule: True
    conda:
        "../../envs/base.yaml"
    params:
        code=EXPERIMENT.code("render.page"),
        shown=EXPERIMENT.shown,
    shell:
        "python -m siliconprof.render.page --drawn {input.drawn:q} --figures {output.figures:q} "
        "--output {output.page:q} 2>{log:q}"


rule complete:
    """Fail, with its reasons, where the page leaves something out."""
    input:
        rules.render.output.errors,
    output:
        touch("results/whole.txt"),
    log:
        "results/logs/complete.log",
    localrule: True
    conda:
        "../../envs/base.yaml"
    shell:
        "python -m siliconprof.pipeline.ending {input:q} 2>{log:q}"


use rule draw as figures with:
    output:
        directory("results/print"),
    log:
        "results/logs/figures.log",
    params:
        code=EXPERIMENT.code("render.draw"),
        flags="--print",
