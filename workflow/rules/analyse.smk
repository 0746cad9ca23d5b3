# analyse: what each device can do at most, whether any throughput claims more, expected against
# actual time, why one training takes longer than another, how long each should take, what can explain
# published gaps, and what these results say of published claims. One process: each table is read once.
#
# in:   results/tables/{cells,points,energy,operators,step_parts,probes,curves,…}.csv,
#       results/matrix.json, config/{devices,claims}.yaml, config/published/*.csv,
# out:  results/tables/{ceilings,checks,expected,scaling,attribution,predicted,published_gaps,claims}.csv,
#       results/results.csv


rule analyse:
    """Find ceilings, expected times, causes, predictions and verdicts, and sum up in results.csv."""
    input:
        code=FLOW.code("pipeline.analyse"),
        registry="config/devices.yaml",
        schema="workflow/schemas/devices.schema.yaml",
        claims="config/claims.yaml",
        claims_schema="workflow/schemas/claims.schema.yaml",
        published=FLOW.published,
        matrix="results/matrix.json",
        tables=rules.aggregate.output,
    output:
        "results/results.csv",
        "results/tables/ceilings.csv",
        "results/tables/checks.csv",
        "results/tables/expected.csv",
        "results/tables/scaling.csv",
        "results/tables/attribution.csv",
        "results/tables/predicted.csv",
        "results/tables/published_gaps.csv",
        "results/tables/claims.csv",
    log:
        "results/logs/analyse.log",
    shell:
        r"""
        python -m siliconprof.pipeline.analyse \
            --matrix {input.matrix:q} \
            --tables results/tables \
            --registry {input.registry:q} \
            --claims {input.claims:q} \
            --published config/published \
            --output-dir results/tables \
            >{log:q} 2>&1
        """
