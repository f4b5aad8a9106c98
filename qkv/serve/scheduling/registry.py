"""The models of a server, by name and ability."""

from __future__ import annotations

from collections.abc import Sequence

from qkv.errors import QkvError
from qkv.serve.http.errors import ApiError
from qkv.serve.http.limits import Limits
from qkv.serve.http.metrics import Metrics
from qkv.serve.scheduling.served_model import ServedModel


class ModelRegistry:
    """All served models; names are unique."""

    def __init__(self, models: Sequence[ServedModel], limits: Limits, metrics: Metrics):
        names = [model.name for model in models]
        if len(set(names)) < len(names):
            raise QkvError(f"two models have the same name ({', '.join(names)}): give them as NAME=FOLDER")
        self.models, self.limits = list(models), limits
        for model in models:
            model.limits, model.metrics = limits, metrics

    def start(self) -> None:
        for model in self.models:
            model.start()

    def close(self) -> None:
        for model in self.models:
            model.close(self.limits.seconds)

    def dead_threads(self) -> list[str]:
        """Return the names of threads that ended although the server runs; their requests are never answered."""
        return [thread.name for model in self.models for thread in model.threads if not thread.is_alive()]

    def find(self, name: str | None, ability: str) -> ServedModel:
        """Return the model of this name, or the first one with this ability if no name is given."""
        if name is None:
            model = next((model for model in self.models if ability in model.abilities), None)
            if model is None:
                raise ApiError(
                    404, f"no model here can {ability}: serve one that was trained for it", "model_not_found", "model"
                )
            return model
        model = self.get(name)
        if ability not in model.abilities:
            able = ", ".join(model.abilities) or "nothing"
            raise ApiError(400, f"the model {name!r} cannot {ability}; it can {able}", "model_not_suited", "model")
        return model

    def get(self, name: str) -> ServedModel:
        for model in self.models:
            if model.name == name:
                return model
        known = ", ".join(model.name for model in self.models) or "none"
        raise ApiError(404, f"there is no model {name[:100]!r}; available: {known}", "model_not_found", "model")

    def translators(self) -> list[ServedModel]:
        return [model for model in self.models if "translate" in model.abilities and model.pair is not None]
