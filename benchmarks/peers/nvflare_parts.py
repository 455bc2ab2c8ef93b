"""What NVFlare's simulator makes by name in its own processes: the model, and the server's turns."""
# pyright: reportMissingImports=false

from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from torch import Tensor, nn

from benchmarks.peers import shared
from benchmarks.peers.turns import Gate


class Model(nn.Module):
    def __init__(self, name: str):
        super().__init__()
        self.name = name
        self.net = shared.model(name)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Turns(FLComponent):
    """The gate, asked when the server begins a round: by then the one before is averaged and saved."""

    def __init__(self):
        super().__init__()
        self.samples = 0
        self.gate = Gate("nvflare", lambda: self.samples)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == AppEventType.AFTER_AGGREGATION:
            result = fl_ctx.get_prop(AppConstants.AGGREGATION_RESULT)
            self.samples = round(result.metrics["samples"] * result.meta["nr_aggregated"])
        if event_type == AppEventType.ROUND_STARTED:
            if fl_ctx.get_prop(AppConstants.CURRENT_ROUND) and not self.gate():
                self.system_panic("no more rounds are wanted", fl_ctx)
