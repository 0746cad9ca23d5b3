# host: what the nodes of a label of `cluster` are, found on one of them before its cells are known.


checkpoint host:
    """Find out what a node of this label is, on such a node."""
    input:
        registry=EXPERIMENT.shipped("config/devices.yaml"),
    output:
        "results/hosts/{host}.json",
    log:
        "results/logs/hosts/{host}.log",
    conda:
        EXPERIMENT.conda
    resources:
        **EXPERIMENT.resources(runtime=15),
    params:
        facts=EXPERIMENT.facts,  # not used, but a trigger
    shell:
        "python -P -m siliconprof.hosts.host_file --label {wildcards.host:q} "
        "--registry {input.registry:q} --output {output:q} 2>{log:q}"
