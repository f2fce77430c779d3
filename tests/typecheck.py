"""The run-time type checker of the tests: beartype, with int accepted where float is asked for."""

from beartype import BeartypeConf
from beartype import beartype

typecheck = beartype(conf=BeartypeConf(is_pep484_tower=True))
