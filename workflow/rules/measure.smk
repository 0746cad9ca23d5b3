# measure: one cell, one process, one record.
#
# in:   the cell's code (its static import closure), the arrays it reads, the versions it uses
# out:  results/records/{host}/{device}/{backend}/{workload}/{scenario}/{precision}.json
# by:   results/history/…, results/captures/…: by-products that no rule owns
#
# The wildcards match this host's own cells and nothing else: records of other hosts are leaf
# inputs of `aggregate` and belong to no rule.

CELL = "{host}/{device}/{backend}/{workload}/{scenario}/{precision}"


rule measure:
    """Measure one cell and leave its record."""
    input:
        code=lookup(dpath=f"{CELL}/code", within=FLOW.cells),
        data=lookup(dpath=f"{CELL}/data", within=FLOW.cells),
        arrays=ancient(lookup(dpath=f"{CELL}/arrays", within=FLOW.cells)),
    output:
        f"results/records/{CELL}.json",
    log:
        f"results/logs/measure/{CELL}.log",
    wildcard_constraints:
        **FLOW.patterns,
    resources:
        accelerator=1,
    params:
        cell=lookup(dpath=f"{CELL}/cell", within=FLOW.cells),
        environment=lookup(dpath=f"{CELL}/environment", within=FLOW.cells),
    shell:
        r"""
        python -m siliconprof.measure \
            --cell {params.cell:q} \
            --environment {params.environment:q} \
            --history results/history \
            --captures results/captures \
            --output {output:q} \
            >{log:q} 2>&1
        """
