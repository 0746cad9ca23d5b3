# analyse: ceilings, expected times, causes, predictions, verdicts on published claims.


rule analyse:
    """Find ceilings, expected times, causes, predictions and verdicts, and sum up in results.csv."""
    input:
        registry=EXPERIMENT.shipped("config/devices.yaml"),
        claims=EXPERIMENT.shipped("config/claims.yaml"),
        published=EXPERIMENT.listed("config/published/*.csv"),
        matrix="results/matrix.json",
        tables=rules.aggregate.output,
    output:
        "results/results.csv",
        expand(
            "results/tables/{table}.csv",
            table="ceilings checks expected scaling attribution predicted claims".split(),
        ),
    log:
        "results/logs/analyse.log",
    localrule: True
    params:
        code=EXPERIMENT.code,
    shell:
        "python -P -m siliconprof.pipeline.analyse --matrix {input.matrix:q} --tables {input.tables:q} "
        "--registry {input.registry:q} --claims {input.claims:q} --published {input.published:q} "
        "--output {output:q} 2>{log:q}"
