# prepare: one data set in, the same arrays for every framework out.
#
# in:   an entry of `datasets` in the config (built-in text, hub data set or folder)
# out:  results/data/{dataset}/dataset.json with checksums; tokens.npy and tokenizer.json beside it


rule prepare:
    """Tokenise one data set, once, for all frameworks."""
    input:
        code=FLOW.code("prepare"),
        text="workflow/siliconprof/data/builtin_text.txt",
    output:
        "results/data/{dataset}/dataset.json",
        "results/data/{dataset}/tokens.npy",
        "results/data/{dataset}/tokenizer.json",
    log:
        "results/logs/prepare/{dataset}.log",
    wildcard_constraints:
        dataset=FLOW.dataset_pattern,
    params:
        dataset=lookup(dpath="{dataset}", within=FLOW.datasets),
        folder="results/data/{dataset}",
    shell:
        r"""
        python -m siliconprof.prepare \
            --dataset {params.dataset:q} \
            --output-dir {params.folder:q} \
            >{log:q} 2>&1
        """
