"""At most ten sentences that these results allow, each made of one comparison."""

from siliconprof.analyse import findings
from siliconprof.render.exhibit import Exhibit

EXHIBIT = Exhibit(
    id="findings",
    rows=findings.sentences,
    sentences=True,
    needs="It needs two trainings of equal work on different backends, devices or precisions.",
)
