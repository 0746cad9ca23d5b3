# aggregate: the experiment and its cells as files, reference bundles unpacked, records into tables.


rule experiment:
    """Write down the resolved config."""
    output:
        "results/experiment.json",
    log:
        "results/logs/experiment.log",
    localrule: True
    params:
        text=EXPERIMENT.text,
    script:
        "../scripts/write_experiment.py"


rule matrix:
    """Write down which cells this experiment has on the hosts of this run."""
    input:
        experiment="results/experiment.json",
        registry=EXPERIMENT.shipped("config/devices.yaml"),
        hosts=EXPERIMENT.host_files,
        focus=EXPERIMENT.focus,
    output:
        "results/matrix.json",
    log:
        "results/logs/matrix.log",
    localrule: True
    params:
        code=EXPERIMENT.code,
    shell:
        "python -P -m siliconprof.cells.matrix --experiment {input.experiment:q} "
        "--registry {input.registry:q} --host-file {input.hosts:q} --focus {input.focus:q} "
        "--output {output:q} 2>{log:q}"


rule reference:
    """Unpack one shipped bundle of records measured elsewhere."""
    input:
        EXPERIMENT.shipped("config/measured/{bundle}.zip"),
    output:
        directory("results/reference/{bundle}"),
    log:
        "results/logs/reference/{bundle}.log",
    localrule: True
    params:
        code=EXPERIMENT.code,
    shell:
        "python -P -m siliconprof.remote.bundle_import {input:q} --unpack {output:q} 2>{log:q}"


rule aggregate:
    """Turn every record into tidy tables."""
    input:
        EXPERIMENT.records,
        matrix="results/matrix.json",
        foreign=EXPERIMENT.foreign,
        reference=EXPERIMENT.reference,
    output:
        expand(
            "results/tables/{table}.csv",
            table="cells points steps training_steps samples energy probes operators step_parts curves evaluations texts models history outside unreadable".split(),
        ),
    log:
        "results/logs/aggregate.log",
    localrule: True
    params:
        code=EXPERIMENT.code,
        results=subpath(input.matrix, parent=True),
    shell:
        # Records are in the matrix, others' below the results: a command of them all could be too long.
        "python -P -m siliconprof.analyse.aggregate --matrix {input.matrix:q} "
        "--results {params.results:q} --reference {input.reference:q} --output {output:q} 2>{log:q}"
