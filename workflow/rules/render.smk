# render: tables into figures and one page that opens offline.
#
# in:   results/tables/*.csv, results/matrix.json, config/published/*.csv, report/,
#       results/noise-floor/{host}.json of the hosts that have one
# out:  results/report.html, results/figures/


rule render:
    """Draw the figures and write the page."""
    input:
        code=FLOW.code("render.page"),
        template=FLOW.template,
        published=FLOW.published,
        registry="config/devices.yaml",
        schema="workflow/schemas/devices.schema.yaml",
        matrix="results/matrix.json",
        tables=rules.aggregate.output,
        ceilings=rules.ceilings.output,
        expected=rules.expected.output,
        claims=rules.claims.output,
        floors=FLOW.noise_floors,
    output:
        page="results/report.html",
        figures=directory("results/figures"),
    log:
        "results/logs/render.log",
    shell:
        r"""
        python -m siliconprof.render.page \
            --matrix {input.matrix:q} \
            --tables results/tables \
            --published config/published \
            --registry {input.registry:q} \
            --noise-floors {input.floors:q} \
            --template report \
            --figures {output.figures:q} \
            --output {output.page:q} \
            >{log:q} 2>&1
        """
