# host: what this host is, found out before its cells are known; auto.json beside it keeps its label.


rule host:
    """Write down what this host is."""
    output:
        "results/hosts/{host}.json",
    log:
        "results/logs/hosts/{host}.log",
    priority: 3  # before any cell
    localrule: True
    params:
        facts=EXPERIMENT.facts,
    shell:
        "python -P -m siliconprof.hosts.host_file --facts {params.facts:q} --output {output:q} "
        "2>{log:q}"
