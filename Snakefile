# The workflow lies where Snakemake's catalog looks for it.
include: "workflow/Snakefile"


rule all:
    """The page, and every record of this run's hosts behind them."""
    default_target: True
    input:
        EXPERIMENT.in_batches_of("report", rules.report.input),
    localrule: True
