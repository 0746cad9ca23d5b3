# measure: one cell, one process, one record.
#
# in:   the facts of the data that it reads, the files of its weights where they lie in a folder
# out:  results/records/{host}/{device}/{backend}/{workload}/{scenario}/{precision}.json
# by:   results/history/…, results/captures/…, results/checkpoints/…: by-products that no rule owns


rule measure:
    """Measure one cell and leave its record."""
    input:
        EXPERIMENT.of_cell("files"),
        host=ancient(EXPERIMENT.node_file),
    output:
        "results/records/{host}/{device}/{backend}/{workload}/{scenario}/{precision}.json",
    log:
        "results/logs/measure/{host}/{device}/{backend}/{workload}/{scenario}/{precision}.log",
    priority: EXPERIMENT.of_cell("priority")
    conda:
        EXPERIMENT.conda
    threads: EXPERIMENT.cores  # nothing of this run beside it; a cell has its own
    resources:
        **EXPERIMENT.resources(),
        time_limit_s=EXPERIMENT.time_limit_s,
    params:
        arguments=EXPERIMENT.of_cell("arguments"),
    shell:
        "python -P -m siliconprof.measure {params.arguments} --time-limit {resources.time_limit_s} "
        "--output {output:q} 2>{log:q}"


rule retry:
    """Measure disturbed trainings of the answer once more, within a budget, before tables are made."""
    input:
        EXPERIMENT.records,
        matrix="results/matrix.json",
    output:
        "results/retried.txt",
    log:
        "results/logs/retry.log",
    localrule: True
    conda:
        EXPERIMENT.conda
    threads: EXPERIMENT.cores
    params:
        budget_s=EXPERIMENT.config["retry_contended_s"],
    shell:
        "python -P -m siliconprof.pipeline.retry --matrix {input.matrix:q} "
        "--budget {params.budget_s} --output {output:q} 2>{log:q}"
