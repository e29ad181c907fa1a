"""TrackioSink: Trackio's local database, which ``trackio show`` draws; it is where Trackio keeps it, not in the run."""

from dataclasses import dataclass

from experiments.sinks.record import Record


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackioSink:
    """Settings as in ``experiments.schemas.TrackioSchema``."""

    project: str = "specdec"
    timeout_s: float = 60.0

    @property
    def package(self) -> str:
        return "trackio"

    @property
    def extra(self) -> str:
        return "trackio"

    def fallback(self) -> None:
        """There is none: it is local already."""

    def publish(self, record: Record) -> None:
        """One run: scalars and tables; group is the sweep, name the run key."""
        import trackio

        trackio.init(
            project=self.project,
            name=record.name,
            group=record.group or None,
            config=record.facts,
        )
        try:
            content: dict[str, object] = {**record.scalars, "done": float(record.is_done)}
            for name, table in record.tables.items():
                content[name] = trackio.Table(columns=list(table.columns), data=[list(row) for row in table.rows])
            trackio.log(content)
        finally:
            trackio.finish()
