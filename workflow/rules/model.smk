# model: what is known of a person's model before it is built, since its cells follow from that.


checkpoint model:
    """Look at a model's config: its parameters, and what a step of it computes and keeps."""
    output:
        "results/models/{model}.json",
    log:
        "results/logs/models/{model}.log",
    wildcard_constraints:
        model="|".join(EXPERIMENT.models),
    priority: 2
    localrule: True
    params:
        spec=lookup(dpath="{model}", within=EXPERIMENT.models),
        method=EXPERIMENT.makes_models,
        source=lookup(dpath="{model}", within=EXPERIMENT.model_sources),
    shell:
        "python -P -m siliconprof.cells.model_file --spec {params.spec:q} --output {output:q} "
        "2>{log:q}"
