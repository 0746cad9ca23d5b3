# prepare: one data set in, the same arrays for every framework out; sources.json says of which files. Data
# that cannot be prepared fail their own cells: dataset.json says why, and the next run tries again.


rule prepare:
    """Make the arrays of one data set, once, for all frameworks."""
    output:
        "results/data/{dataset}/dataset.json",
        "results/data/{dataset}/tokens.npy",
        "results/data/{dataset}/tokenizer.json",
    log:
        "results/logs/prepare/{dataset}.log",
    wildcard_constraints:
        dataset=EXPERIMENT.datasets_of("text"),
    priority: EXPERIMENT.data_priority
    localrule: True
    params:
        method=EXPERIMENT.makes("text"),
        dataset=lookup(dpath="{dataset}", within=EXPERIMENT.datasets),
        folder=subpath(output[0], parent=True),
        sources=lookup(dpath="{dataset}", within=EXPERIMENT.sources),
    shell:
        "python -P -m siliconprof.datasets.prepare --dataset {params.dataset:q} "
        "--output-dir {params.folder:q} --sources-state {params.sources:q} --record-failure 2>{log:q}"


use rule prepare as prepare_speech with:
    output:
        "results/data/{dataset}/dataset.json",
        "results/data/{dataset}/features.npy",
        "results/data/{dataset}/decoder_input_ids.npy",
        "results/data/{dataset}/labels.npy",
        "results/data/{dataset}/tokenizer.json",
    wildcard_constraints:
        dataset=EXPERIMENT.datasets_of("speech"),
    params:
        method=EXPERIMENT.makes("speech"),


use rule prepare as prepare_images with:
    output:
        "results/data/{dataset}/dataset.json",
        "results/data/{dataset}/images.npy",
        "results/data/{dataset}/labels.npy",
    wildcard_constraints:
        dataset=EXPERIMENT.datasets_of("images"),
    params:
        method=EXPERIMENT.makes("images"),
