# host: what this host is; auto.json beside it keeps its label. Cells wait for `machine`, which an update
# of a library leaves as it is: behind a file that is due Snakemake looks at no parameter of a cell.


rule machine:
    """Write down which machine has this label; no other measures under it."""
    output:
        "results/machines/{host}.json",
    log:
        "results/logs/machines/{host}.log",
    localrule: True
    params:
        machine=EXPERIMENT.machine,
    shell:
        "python -P -m siliconprof.hosts.host_file --machine {params.machine:q} --output {output:q} "
        "2>{log:q}"


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
