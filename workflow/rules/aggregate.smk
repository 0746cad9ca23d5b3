# aggregate: the expansion as a file, reference bundles unpacked, records into tidy tables.
#
# in:   records of this run's hosts by the matrix, other hosts' by listing, config/measured/*.zip
# out:  results/matrix.json, results/reference/, results/tables/*.csv


rule matrix:
    """Write down which cells this experiment has on the hosts of this run."""
    input:
        code=FLOW.code("cells.matrix"),
        registry="config/devices.yaml",
        schema="workflow/schemas/devices.schema.yaml",
        hosts=FLOW.detected,
        focus=FLOW.focus,
    output:
        "results/matrix.json",
    log:
        "results/logs/matrix.log",
    params:
        experiment=FLOW.asked,
        hosts=FLOW.host_files,
        # Not used, but a trigger: a host file is written anew for more than what it says.
        facts=FLOW.facts,
        not_measured=FLOW.not_measured,
    shell:
        r"""
        python -m siliconprof.cells.matrix \
            --experiment {params.experiment:q} \
            --host-file {params.hosts:q} \
            --focus {input.focus:q} \
            --not-measured {params.not_measured:q} \
            --registry {input.registry:q} \
            --output {output:q} \
            >{log:q} 2>&1
        """


rule reference:
    """Unpack one shipped bundle of records measured elsewhere."""
    input:
        code=FLOW.code("remote.bundle_import"),
        schemas=snakefile.BUNDLE_SCHEMAS,
        bundle="config/measured/{bundle}.zip",
    output:
        directory("results/reference/{bundle}"),
    log:
        "results/logs/reference/{bundle}.log",
    shell:
        r"""
        python -m siliconprof.remote.bundle_import {input.bundle:q} \
            --unpack {output:q} \
            >{log:q} 2>&1
        """


rule aggregate:
    """Turn every record into tidy tables."""
    input:
        FLOW.records,
        code=FLOW.code("analyse.aggregate"),
        schema="workflow/schemas/record.schema.yaml",
        columns="workflow/siliconprof/store/columns.yaml",
        matrix="results/matrix.json",
        retried=FLOW.retried,
        foreign=FLOW.foreign,
        reference=FLOW.reference,
    output:
        "results/tables/cells.csv",
        "results/tables/points.csv",
        "results/tables/steps.csv",
        "results/tables/training_steps.csv",
        "results/tables/samples.csv",
        "results/tables/energy.csv",
        "results/tables/probes.csv",
        "results/tables/operators.csv",
        "results/tables/step_parts.csv",
        "results/tables/curves.csv",
        "results/tables/evaluations.csv",
        "results/tables/texts.csv",
        "results/tables/models.csv",
        "results/tables/history.csv",
        "results/tables/outside.csv",
        "results/tables/unreadable.csv",
    log:
        "results/logs/aggregate.log",
    params:
        # Not used, but a trigger: where a run for another experiment has failed with nothing but
        # these tables left, Snakemake would take them for up to date.
        experiment=FLOW.asked,
    shell:
        r"""
        python -m siliconprof.analyse.aggregate \
            --matrix {input.matrix:q} \
            --results results \
            --reference {input.reference:q} \
            --output-dir results/tables \
            >{log:q} 2>&1
        """
