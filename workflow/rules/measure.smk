# measure: one cell, one process, one record.
#
# in:   the cell's code (its static import closure), the arrays it reads, the files of its weights
#       where they lie in a folder, the versions it uses
# out:  results/records/{host}/{device}/{backend}/{workload}/{scenario}/{precision}.json
# by:   results/history/…, results/captures/…, results/kept/…: by-products that no rule owns
#
# The wildcards match the cells of this run's hosts and nothing else: records of other hosts are
# leaf inputs of `aggregate` and belong to no rule. Here there is one rule, `measure`; on a cluster
# there is one for every label, `measure_{label}`, whose resources lead to its nodes.

CELL = "{host}/{device}/{backend}/{workload}/{scenario}/{precision}"


for KIND in FLOW.measuring:

    rule:
        """Measure one cell and leave its record."""
        name:
            KIND.rule
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
            **KIND.patterns,
        resources:
            **KIND.resources,
            accelerator=1,
        params:
            cell=FLOW.of_cell("cell"),
            environment=FLOW.of_cell("environment"),
            expected=FLOW.of_cell("expected"),
        shell:
            r"""
            python -m siliconprof.measure \
                --cell {params.cell:q} \
                --environment {params.environment:q} \
                --expect {params.expected:q} \
                --history results/history \
                --captures results/captures \
                --keep results/kept \
                --output {output:q} \
                >{log:q} 2>&1
            """
