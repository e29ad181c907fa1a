"""TensorboardSink: event files in the run folder; ``tensorboard --logdir multirun`` shows all runs below."""

from dataclasses import dataclass

from experiments.sinks.record import Record, Table

FOLDER = "tensorboard"
NO_POSITIONS = Table(columns=("position",), rows=())


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorboardSink:
    """Settings as in ``experiments.schemas.TensorboardSchema``."""

    timeout_s: float = 60.0

    @property
    def package(self) -> str:
        return "tensorboard"

    @property
    def extra(self) -> str:
        return "tensorboard"

    def fallback(self) -> None:
        """There is none: nothing but the disk can fail."""

    def publish(self, record: Record) -> None:
        """Scalars at step 0, those of a position at the step of its number, and tables as text."""
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(record.folder / FOLDER)) as writer:
            for name, value in record.scalars.items():
                writer.add_scalar(name, value, 0)
            writer.add_text("status", f"{record.status} {record.error}".strip(), 0)
            positions = record.tables.get("by_position", NO_POSITIONS)
            for position, *values in positions.rows:
                for column, value in zip(positions.columns[1:], values, strict=True):
                    if value is not None:
                        writer.add_scalar(f"by_position/{column}", value, position)
            for name, table in record.tables.items():
                writer.add_text(name, _markdown(table), 0)


def _markdown(table: Table) -> str:
    lines = [table.columns, ["---"] * len(table.columns), *table.rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
