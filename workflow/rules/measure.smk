# measure: one cell, one process, one record.
#
# in:   the facts of the data that it reads, the files of its weights where they lie in a folder; as
#       arguments the cell, the fingerprint of the code that measures it, the versions it uses
# out:  results/records/{host}/{device}/{backend}/{workload}/{scenario}/{precision}.json
# by:   results/history/…, results/captures/…, results/checkpoints/…: by-products that no rule owns
#
# retry: the same cells, where other processes disturbed them, once all have been measured. It replaces
# records before any table is made of them; what it leaves, results/retried.txt, is newer than they.
#
# The wildcard is a cell's path and matches those of this run's hosts and no other: records of other
# hosts are leaf inputs of `aggregate` and belong to no rule. Here there is one rule, `measure`; on a
# cluster there is one for every label, `measure_{label}`, whose resources lead to its nodes. One
# function for each part of the rule and no more: Snakemake calls them for thousands of cells.


for KIND in FLOW.measuring:

    rule:
        """Measure one cell and leave its record."""
        name:
            KIND.rule
        input:
            FLOW.of_cell("files"),
        output:
            "results/records/{cell}.json",
        log:
            "results/logs/measure/{cell}.log",
        wildcard_constraints:
            cell=KIND.cells,
        priority: FLOW.of_cell("priority")
        resources:
            **KIND.resources,
            accelerator=1,
            time_limit_s=FLOW.time_limit_s(),
        params:
            arguments=FLOW.of_cell("arguments"),
        shell:
            r"""
            python -m siliconprof.measure \
                {params.arguments} \
                --time-limit {resources.time_limit_s} \
                --history results/history \
                --checkpoints results/checkpoints \
                --output {output:q} \
                >{log:q} 2>&1
            """


rule retry:
    """Measure once more what other processes disturbed, within a budget."""
    input:
        FLOW.records,
        matrix="results/matrix.json",
        registry="config/devices.yaml",
    output:
        "results/retried.txt",
    log:
        "results/logs/retry.log",
    resources:
        accelerator=1,
    params:
        budget_s=FLOW.experiment["retry_contended_s"],
    shell:
        r"""
        python -m siliconprof.pipeline.retry \
            --matrix {input.matrix:q} \
            --registry {input.registry:q} \
            --budget {params.budget_s} \
            --output {output:q} \
            >{log:q} 2>&1
        """
