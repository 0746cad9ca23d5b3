# prepare: one data set in, the same arrays for every framework out; sources.json says of which files. Data
# that cannot be prepared fail their own cells: dataset.json says why, and the next run tries again.
for KIND in EXPERIMENT.kinds:

    rule:
        """Make the arrays of one data set, once, for all frameworks."""
        name:
            f"prepare_{KIND}"
        output:
            EXPERIMENT.files_of(KIND),
        log:
            "results/logs/prepare/{dataset}.log",
        wildcard_constraints:
            dataset=EXPERIMENT.datasets_of(KIND),
        priority: EXPERIMENT.data_priority
        localrule: True
        params:
            method=EXPERIMENT.makes(KIND),
            dataset=lookup(dpath="{dataset}", within=EXPERIMENT.datasets),
            folder=subpath(output[0], parent=True),
            sources=lookup(dpath="{dataset}", within=EXPERIMENT.sources),
        shell:
            "python -P -m siliconprof.datasets.prepare --dataset {params.dataset:q} "
            "--output-dir {params.folder:q} --sources-state {params.sources:q} --record-failure 2>{log:q}"
