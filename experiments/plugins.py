"""What installed packages add: config folders and drafter classes that they advertise under ``specdec.plugins``.

An entry point of that group names one of two things:

    lucky = "lucky.conf"                  a package (with __init__.py) of config groups: lucky/conf/drafter/lucky.yaml
    lucky = "lucky.drafter:LuckyConfig"   a drafter's configuration class: it becomes the option drafter=lucky

An option that ships wins over one of the same name. A plug-in that cannot be used is left out with a warning; it never
ends a command. Modules in the working directory can be named by ``_target_``, also from the console command.
"""

import os
import sys
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

from experiments.kept import Kept
from specdec.errors import ConfigError

GROUP = "specdec.plugins"


@dataclass(frozen=True, kw_only=True, slots=True)
class Plugin:
    """A plug-in that can be used.

    name          of the entry point
    origin        distribution and version
    module        package of config groups, or module of the class
    folder        of the config groups; None for a class
    class_name    of the drafter's configuration; empty for config groups
    """

    name: str
    origin: str
    module: str
    folder: Path | None = None
    class_name: str = ""

    def __str__(self) -> str:
        if self.folder is None:
            return f"{self.name} ({self.origin}): drafter={self.name} is {self.module}.{self.class_name}"
        options = (f"{path.parent.name}={path.stem}" for path in sorted(self.folder.glob("*/*.yaml")))
        return f"{self.name} ({self.origin}): {', '.join(options)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Plug-ins in the order of their names, and a line for each that is left out."""

    plugins: tuple[Plugin, ...]
    warnings: tuple[str, ...]


def find() -> Found:
    """Look at what installed distributions advertise."""
    plugins, warnings = [], []
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        with Kept() as kept:
            plugins.append(_plugin(entry))
        if kept.error is not None:
            warnings.append(f"plug-in {entry.name} ({_origin(entry)}) is left out: {kept.line}")
    return Found(plugins=tuple(plugins), warnings=tuple(warnings))


def _plugin(entry: EntryPoint) -> Plugin:
    """Raises whatever importing the package raises, and ConfigError for one that holds nothing to use."""
    module, _, class_name = entry.value.replace(" ", "").partition(":")
    if class_name:
        # The module itself is not imported: it needs torch, and --help does not.
        if find_spec(module) is None:
            raise ConfigError(f"there is no module {module}")
        return Plugin(name=entry.name, origin=_origin(entry), module=module, class_name=class_name)
    file = import_module(module).__file__
    if file is None or Path(file).name != "__init__.py":
        raise ConfigError(f"{module} must be a package with an __init__.py of config groups")
    folder = Path(file).parent
    if not any(folder.glob("*/*.yaml")):
        raise ConfigError(f"{module} holds no option such as drafter/{entry.name}.yaml")
    return Plugin(name=entry.name, origin=_origin(entry), module=module, folder=folder)


def _origin(entry: EntryPoint) -> str:
    return "unknown" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"


class AdvertisedFolders(SearchPathPlugin):
    """Adds the config folders of plug-ins behind those of the project, wherever Hydra makes a search path."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Called by Hydra."""
        for plugin in find().plugins:
            if plugin.folder is not None:
                search_path.append(provider=f"plug-in {plugin.name}", path=f"pkg://{plugin.module}")


def register(conf: Path) -> Found:
    """Make plug-ins and the working directory known to Hydra and to ``_target_``; may be called again.

    conf  the project's own options; a class of the same name is left out
    """
    if os.getcwd() not in (*sys.path, *map(os.path.abspath, sys.path)):
        sys.path.append(os.getcwd())
    Plugins.instance().register(AdvertisedFolders)
    found = find()
    shipped = {path.stem for path in (conf / "drafter").glob("*.yaml")}
    kept, warnings = [], list(found.warnings)
    for plugin in found.plugins:
        if plugin.class_name and plugin.name in shipped:
            warnings.append(f"plug-in {plugin.name} ({plugin.origin}) is left out: drafter={plugin.name} ships already")
            continue
        kept.append(plugin)
        if plugin.class_name:
            ConfigStore.instance().store(group="drafter", name=plugin.name, node=_option_of(plugin))
    return Found(plugins=tuple(kept), warnings=tuple(warnings))


def _option_of(plugin: Plugin) -> dict[str, object]:
    """What a file conf/drafter/NAME.yaml for the class would hold."""
    schema = [{"/schema/drafter@_here_": "custom"}, "_self_"]
    return {"defaults": schema, "_target_": f"{plugin.module}.{plugin.class_name}"}
