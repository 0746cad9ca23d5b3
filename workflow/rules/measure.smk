# measure: one cell, one process, one record; history, captures and checkpoints are owned by no rule.


rule measure:
    """Measure one cell and leave its record."""
    input:
        EXPERIMENT.of_cell("files"),
        host=ancient(EXPERIMENT.file_of_host),
    output:
        "results/records/{host}/{device}/{backend}/{workload}/{scenario}/{precision}.json",
    log:
        "results/logs/measure/{host}/{device}/{backend}/{workload}/{scenario}/{precision}.log",
    cache: "omit-software"  # by --cache alone; the versions that a cell uses are in its arguments
    priority: EXPERIMENT.of_cell("priority")
    conda:
        EXPERIMENT.conda
    threads: EXPERIMENT.cores  # nothing of this run beside it; a cell has its own
    resources:
        **EXPERIMENT.resources(),
        time_limit_s=EXPERIMENT.time_limit_s,
        remeasure_within_s=EXPERIMENT.remeasure_within_s,
    params:
        arguments=EXPERIMENT.of_cell("arguments"),
    shell:
        "python -P -m siliconprof.measure {params.arguments} --time-limit {resources.time_limit_s} "
        "--remeasure-within {resources.remeasure_within_s} --output {output:q} 2>{log:q}"
