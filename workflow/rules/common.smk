# What every rules file looks up. Anything that computes is a function of the package.
import sys

from snakemake_interface_executor_plugins.settings import ExecMode

sys.path.insert(0, f"{workflow.basedir}/workflow")

from siliconprof.pipeline import executor, snakefile

# Another file on the command line stands alone: it is not laid over this one.
if not workflow.overwrite_configfiles:

    configfile: snakefile.check_readable("config/config.yaml")


FLOW = snakefile.prepare(
    config,
    main_process=workflow.exec_mode == ExecMode.DEFAULT,
    dry_run=snakefile.runs_nothing(workflow.output_settings, sys.argv),
    through=executor.of(workflow.exec_mode, sys.argv),
    checkpoints=checkpoints,
    snakemake=workflow,
)

# Stages run this checkout's code, whatever is installed; each of them checks.
shell.prefix("set -euo pipefail; export PYTHONPATH=workflow; ")
