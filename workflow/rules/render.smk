# render: tables into figures and one page that opens offline.
#
# in:   results/tables/*.csv, results/matrix.json, config/published/*.csv, report/,
# out:  results/drawn/: all that the page says but its captions, so that a new word draws nothing;
#       results/report.html, results/study.html, results/figures/, which `snakemake --report` shows with captions,
#       results/errors.txt: what could not be drawn; results/summary.txt: what a run ends with;
#       on request (`make figures`) results/print/: every figure as SVG, PNG and PDF


rule draw:
    """Draw the figures and fill the tables."""
    input:
        code=FLOW.code("render.draw"),
        published=FLOW.published,
        registry="config/devices.yaml",
        schema="workflow/schemas/devices.schema.yaml",
        matrix="results/matrix.json",
        tables=rules.aggregate.output,
        analysed=rules.analyse.output,
    output:
        directory("results/drawn"),
    log:
        "results/logs/draw.log",
    params:
        again=FLOW.again,
    shell:
        r"""
        python -m siliconprof.render.draw \
            --matrix {input.matrix:q} \
            --tables results/tables \
            --published config/published \
            --registry {input.registry:q} \
            --drawn {output:q} \
            --figures results/figures \
            --again {params.again:q} \
            >{log:q} 2>&1
        """


rule render:
    """Write both pages, with their captions and looks."""
    input:
        code=FLOW.code("render.page"),
        template=FLOW.template,
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
            category=FLOW.shown.category,
            subcategory=FLOW.shown.subcategory,
            labels=FLOW.shown.labels,
        ),
        errors="results/errors.txt",
        summary="results/summary.txt",
    log:
        "results/logs/render.log",
    params:
        shown=FLOW.shown,
    shell:
        r"""
        python -m siliconprof.render.page \
            --drawn {input.drawn:q} \
            --template report \
            --figures {output.figures:q} \
            --output {output.page:q} \
            >{log:q} 2>&1
        """


rule figures:
    """Draw the figures for print."""
    input:
        **rules.draw.input,
    output:
        directory("results/print"),
    log:
        "results/logs/figures.log",
    shell:
        r"""
        python -m siliconprof.render.draw \
            --matrix {input.matrix:q} \
            --tables results/tables \
            --published config/published \
            --registry {input.registry:q} \
            --drawn {output:q} \
            --figures results/figures \
            --print \
            >{log:q} 2>&1
        """
