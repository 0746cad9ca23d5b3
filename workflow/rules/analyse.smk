# analyse: what each device can do at most, and whether any throughput claims more.
#
# in:   results/tables/{cells,points}.csv, results/matrix.json, config/devices.yaml,
#       results/noise-floor/{host}.json of the hosts that have one
# out:  results/tables/ceilings.csv, results/tables/checks.csv


rule ceilings:
    """Find the measured ceilings, and hold every throughput against them."""
    input:
        code=FLOW.code("ceilings"),
        registry="config/devices.yaml",
        schema="workflow/schemas/devices.schema.yaml",
        matrix="results/matrix.json",
        cells="results/tables/cells.csv",
        points="results/tables/points.csv",
        floors=FLOW.noise_floors,
    output:
        "results/tables/ceilings.csv",
        "results/tables/checks.csv",
    log:
        "results/logs/ceilings.log",
    shell:
        r"""
        python -m siliconprof.ceilings \
            --matrix {input.matrix:q} \
            --tables results/tables \
            --registry {input.registry:q} \
            --noise-floors {input.floors:q} \
            --output-dir results/tables \
            >{log:q} 2>&1
        """
