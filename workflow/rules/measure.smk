# measure: one cell, one process, one record.
#
# in:   the cell's code (its static import closure), the arrays it reads, the files of its weights
#       where they lie in a folder, the versions it uses
# out:  results/records/{host}/{device}/{backend}/{workload}/{scenario}/{precision}.json
# by:   results/history/…, results/captures/…, results/kept/…: by-products that no rule owns
#
# The wildcards match this host's own cells and nothing else: records of other hosts are leaf
# inputs of `aggregate` and belong to no rule.

CELL = "{host}/{device}/{backend}/{workload}/{scenario}/{precision}"


rule measure:
    """Measure one cell and leave its record."""
    input:
        code=FLOW.of_cell("code"),
        data=FLOW.of_cell("data"),
        arrays=ancient(FLOW.of_cell("arrays")),
        weights=FLOW.of_cell("weights"),
    output:
        f"results/records/{CELL}.json",
    log:
        f"results/logs/measure/{CELL}.log",
    wildcard_constraints:
        **FLOW.patterns,
    resources:
        accelerator=1,
    params:
        cell=FLOW.of_cell("cell"),
        environment=FLOW.of_cell("environment"),
    shell:
        r"""
        python -m siliconprof.measure \
            --cell {params.cell:q} \
            --environment {params.environment:q} \
            --history results/history \
            --captures results/captures \
            --keep results/kept \
            --output {output:q} \
            >{log:q} 2>&1
        """
