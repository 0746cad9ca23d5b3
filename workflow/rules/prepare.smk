# prepare: one data set in, the same arrays for every framework out.
#
# in:   an entry of `datasets` in the config (built-in, hub data set or folder)
# out:  results/data/{dataset}/dataset.json with checksums, tokenizer.json and the arrays beside it:
#       tokens.npy of text; features.npy, decoder_input_ids.npy and labels.npy of speech;
#       images.npy and labels.npy of images, which have no tokenizer.json
# by:   sources.json beside them: which files of a folder were read. It is no output, because it is
#       what the next run compares those files with, and `params.sources` is the answer
#
# A kind's rule matches the names of that kind's data sets alone, and depends on its method alone:
# the fingerprint of the code that makes the arrays, and the libraries that it makes them with.


rule prepare:
    """Make the arrays of one data set, once, for all frameworks."""
    input:
        text=lookup(dpath="{dataset}", within=FLOW.dataset_texts),
    output:
        "results/data/{dataset}/dataset.json",
        "results/data/{dataset}/tokens.npy",
        "results/data/{dataset}/tokenizer.json",
    log:
        "results/logs/prepare/{dataset}.log",
    wildcard_constraints:
        dataset=FLOW.dataset_patterns["text"],
    params:
        method=FLOW.methods["text"],
        dataset=lookup(dpath="{dataset}", within=FLOW.datasets),
        folder="results/data/{dataset}",
        sources=lookup(dpath="{dataset}", within=FLOW.sources),
    shell:
        r"""
        python -m siliconprof.datasets.prepare \
            --dataset {params.dataset:q} \
            --output-dir {params.folder:q} \
            --sources-state {params.sources:q} \
            >{log:q} 2>&1
        """


use rule prepare as prepare_speech with:
    output:
        "results/data/{dataset}/dataset.json",
        "results/data/{dataset}/features.npy",
        "results/data/{dataset}/decoder_input_ids.npy",
        "results/data/{dataset}/labels.npy",
        "results/data/{dataset}/tokenizer.json",
    log:
        "results/logs/prepare_speech/{dataset}.log",
    wildcard_constraints:
        dataset=FLOW.dataset_patterns["speech"],
    params:
        method=FLOW.methods["speech"],


use rule prepare as prepare_images with:
    output:
        "results/data/{dataset}/dataset.json",
        "results/data/{dataset}/images.npy",
        "results/data/{dataset}/labels.npy",
    log:
        "results/logs/prepare_images/{dataset}.log",
    wildcard_constraints:
        dataset=FLOW.dataset_patterns["images"],
    params:
        method=FLOW.methods["images"],
