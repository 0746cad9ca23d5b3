# analyse: what each device can do at most, whether any throughput claims more, expected against
# actual time, why one training takes longer than another, how long each should take, what can explain
# published gaps, and what these results say of published claims.
#
# in:   results/tables/{cells,points,energy,operators,probes,curves,evaluations}.csv,
#       results/matrix.json, config/{devices,claims}.yaml, config/published/*.csv,
#       results/noise-floor/{host}.json of the hosts that have one
# out:  results/tables/{ceilings,checks,expected,scaling,attribution,predicted,published_gaps,claims}.csv,
#       results/results.csv,
#       and of each stage that reads records left_out_{stage}.csv: those that it was done without


rule ceilings:
    """Find the measured ceilings, hold every throughput against them, and sum up in results.csv."""
    input:
        code=FLOW.code("analyse.ceilings"),
        registry="config/devices.yaml",
        schema="workflow/schemas/devices.schema.yaml",
        matrix="results/matrix.json",
        cells="results/tables/cells.csv",
        points="results/tables/points.csv",
        energy="results/tables/energy.csv",
        floors=FLOW.noise_floors,
    output:
        "results/results.csv",
        "results/tables/ceilings.csv",
        "results/tables/checks.csv",
        "results/tables/left_out_ceilings.csv",
    log:
        "results/logs/ceilings.log",
    shell:
        r"""
        python -m siliconprof.analyse.ceilings \
            --matrix {input.matrix:q} \
            --tables results/tables \
            --registry {input.registry:q} \
            --noise-floors {input.floors:q} \
            --output-dir results/tables \
            >{log:q} 2>&1
        """


rule expected:
    """Hold a grid's times against the data sheet and our ceilings, and find what bounds them."""
    input:
        code=FLOW.code("analyse.expected"),
        registry="config/devices.yaml",
        schema="workflow/schemas/devices.schema.yaml",
        matrix="results/matrix.json",
        cells="results/tables/cells.csv",
        points="results/tables/points.csv",
        ceilings="results/tables/ceilings.csv",
        floors=FLOW.noise_floors,
    output:
        "results/tables/expected.csv",
        "results/tables/scaling.csv",
        "results/tables/left_out_expected.csv",
    log:
        "results/logs/expected.log",
    shell:
        r"""
        python -m siliconprof.analyse.expected \
            --matrix {input.matrix:q} \
            --tables results/tables \
            --registry {input.registry:q} \
            --noise-floors {input.floors:q} \
            --output-dir results/tables \
            >{log:q} 2>&1
        """


rule attribution:
    """Take the gaps between trainings of equal work apart by phase and by part of the step."""
    input:
        code=FLOW.code("analyse.attribution"),
        cells="results/tables/cells.csv",
        points="results/tables/points.csv",
        step_parts="results/tables/step_parts.csv",
        floors=FLOW.noise_floors,
    output:
        "results/tables/attribution.csv",
        "results/tables/left_out_attribution.csv",
    log:
        "results/logs/attribution.log",
    shell:
        r"""
        python -m siliconprof.analyse.attribution \
            --tables results/tables \
            --noise-floors {input.floors:q} \
            --output-dir results/tables \
            >{log:q} 2>&1
        """


rule prediction:
    """Predict every training's step from the operators of the others on its device."""
    input:
        code=FLOW.code("analyse.prediction"),
        cells="results/tables/cells.csv",
        points="results/tables/points.csv",
        operators="results/tables/operators.csv",
    output:
        "results/tables/predicted.csv",
        "results/tables/left_out_prediction.csv",
    log:
        "results/logs/prediction.log",
    shell:
        r"""
        python -m siliconprof.analyse.prediction \
            --tables results/tables \
            --output-dir results/tables \
            >{log:q} 2>&1
        """


rule published_gaps:
    """Bound what launches, products and bandwidth can explain of the paper's gaps."""
    input:
        code=FLOW.code("analyse.published_gaps"),
        registry="config/devices.yaml",
        schema="workflow/schemas/devices.schema.yaml",
        published=FLOW.published,
    output:
        "results/tables/published_gaps.csv",
    log:
        "results/logs/published_gaps.log",
    shell:
        r"""
        python -m siliconprof.analyse.published_gaps \
            --published config/published \
            --registry {input.registry:q} \
            --output-dir results/tables \
            >{log:q} 2>&1
        """


rule claims:
    """Judge every published claim by these results."""
    input:
        code=FLOW.code("claims.judge"),
        registry="config/devices.yaml",
        schema="workflow/schemas/devices.schema.yaml",
        claims="config/claims.yaml",
        claims_schema="workflow/schemas/claims.schema.yaml",
        published=FLOW.published,
        matrix="results/matrix.json",
        cells="results/tables/cells.csv",
        points="results/tables/points.csv",
        curves="results/tables/curves.csv",
        evaluations="results/tables/evaluations.csv",
        scaling="results/tables/scaling.csv",
        energy="results/tables/energy.csv",
        probes="results/tables/probes.csv",
        ceilings="results/tables/ceilings.csv",
        samples="results/tables/samples.csv",
        training_steps="results/tables/training_steps.csv",
        floors=FLOW.noise_floors,
    output:
        "results/tables/claims.csv",
        "results/tables/left_out_claims.csv",
    log:
        "results/logs/claims.log",
    shell:
        r"""
        python -m siliconprof.claims.judge \
            --matrix {input.matrix:q} \
            --tables results/tables \
            --registry {input.registry:q} \
            --claims {input.claims:q} \
            --published config/published \
            --noise-floors {input.floors:q} \
            --output-dir results/tables \
            >{log:q} 2>&1
        """
