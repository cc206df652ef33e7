"""Imports a module when it is first used, so that a process which never uses it does not pay for loading it.

The caller imports the module under `TYPE_CHECKING` for its types and assigns the result of `lazy_module` otherwise. The
first attribute that is read loads the module, in the thread that reads it.
"""

import sys
from importlib.util import LazyLoader, find_spec, module_from_spec
from types import ModuleType


def lazy_module(name: str) -> ModuleType:
    """The module, loaded already or not; raises ImportError at once where there is none."""
    loaded = sys.modules.get(name)
    if loaded is not None:
        return loaded
    spec = find_spec(name)
    if spec is None or spec.loader is None:
        raise ImportError(f"there is no module {name}", name=name)
    spec.loader = LazyLoader(spec.loader)
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    parent, _, child = name.rpartition(".")
    if parent:  # as an import does; otherwise `import parent.child` would not find it
        setattr(sys.modules[parent], child, module)
    return module
