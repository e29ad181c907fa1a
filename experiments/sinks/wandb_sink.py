"""WandbSink: Weights & Biases, offline unless asked; what is offline lies in the run folder until ``wandb sync``."""

import os
from dataclasses import dataclass, replace

from experiments.sinks.record import Record

OFFLINE = "offline"
ONLINE = "online"


@dataclass(frozen=True, kw_only=True, slots=True)
class WandbSink:
    """Settings as in ``experiments.schemas.WandbSchema``."""

    mode: str = OFFLINE
    project: str = "specdec"
    entity: str | None = None
    report: bool = True
    timeout_s: float = 15.0

    @property
    def package(self) -> str:
        return "wandb"

    @property
    def extra(self) -> str:
        return "wandb"

    def fallback(self) -> "WandbSink | None":
        """Offline, when online failed; that needs no network, so it may take longer."""
        return replace(self, mode=OFFLINE, timeout_s=max(self.timeout_s, 60.0)) if self.mode == ONLINE else None

    def publish(self, record: Record) -> None:
        """One run: scalars, tables and the report; group is the sweep, name the run key."""
        # Without it wandb asks its server about the key before it looks at ``mode``, offline too.
        os.environ["WANDB_MODE"] = self.mode
        import wandb

        run = wandb.init(
            project=self.project,
            entity=self.entity,
            group=record.group or None,
            name=record.name,
            dir=str(record.folder),
            mode=self.mode,
            config=record.facts,
            settings=wandb.Settings(
                init_timeout=self.timeout_s, silent=True, console="off", disable_git=True, save_code=False
            ),
        )
        try:
            content: dict[str, object] = dict(record.scalars)
            for name, table in record.tables.items():
                content[name] = wandb.Table(columns=list(table.columns), data=[list(row) for row in table.rows])
            if self.report and record.is_done:
                content["report"] = wandb.Html(record.report(), inject=False)
            run.log(content)
            run.summary["status"] = record.status
        finally:
            run.finish(exit_code=0 if record.is_done else 1)
