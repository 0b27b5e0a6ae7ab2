# SPDX-License-Identifier: Apache-2.0
"""Keep what comes out the same each time: compiled SQL, Placement's schema, the policy, the API's validators.

Databases, services and connections are each test's own.

A test of a boot took a third of its processor time for these.
"""

import functools
import gc
from collections.abc import Callable, Hashable
from typing import Any

import fixtures
import sqlalchemy
from nova.api.validation import validators
from oslo_db.sqlalchemy import engines
from oslo_policy import policy
from placement.tests import fixtures as placement_fixtures

LEGACY_API = "/v2/+: openstack_compute_api_v21_legacy_v2_compatible\n"

_dialects: dict[Hashable, Any] = {}
_schemas: dict[str, str] = {}
_validators: dict[Hashable, tuple[Any, Any]] = {}


class Reused(fixtures.Fixture):
    def _setUp(self) -> None:
        for name, replacement in (
                ("sqlalchemy.create_engine", _pooled(sqlalchemy.create_engine)),
                ("oslo_db.sqlalchemy.engines.create_engine", _engine(engines.create_engine)),
                ("nova.api.validation.validators._SchemaValidator", _validator),
                ("oslo_policy.policy.parse_file_contents", _parsed),
                ("placement.tests.fixtures.Database.generate_schema_create_all",
                 _schema(placement_fixtures.Database.generate_schema_create_all))):
            self.useFixture(fixtures.MonkeyPatch(name, replacement))


class Calm(fixtures.Fixture):
    """Stop what a cloud that stands need not do: search the modules and classes of nova for garbage."""

    def _setUp(self) -> None:
        _freeze()


@functools.cache
def _freeze() -> None:
    gc.collect()
    gc.freeze()


def _pooled(original: Callable[..., Any]) -> Callable[..., Any]:
    """SQLite reads the whole schema on each new connection, and oslo.db would open one for every transaction."""
    def create_engine(url: Any, **options: Any) -> Any:
        if options.get("poolclass") is sqlalchemy.pool.NullPool:
            options |= {"poolclass": sqlalchemy.pool.QueuePool, "max_overflow": -1, "pool_pre_ping": False}
        return original(url, **options)
    return create_engine


def _engine(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return engines of SQLite that compile each statement once: SQLAlchemy keeps that by engine and dialect."""
    def create_engine(sql_connection: str, **options: Any) -> Any:
        engine = original(sql_connection, **options)
        if engine.dialect.name == "sqlite":
            kept = _dialects.setdefault(repr(sorted(options.items())), (engine.dialect, {}))
            engine.dialect = engine.pool._dialect = kept[0]
            engine.update_execution_options(compiled_cache=kept[1])
        return engine
    return create_engine


def _validator(schema: Any, *args: Any, original: Callable[..., Any] = validators._SchemaValidator,
               **options: Any) -> Any:
    """Nova derives a class of validators for each request, and one more for its answer."""
    key = (id(schema), args, *sorted(options.items()))
    if key not in _validators:
        _validators[key] = (schema, original(schema, *args, **options))  # while it is kept its id is not reused
    return _validators[key][1]


_parse = functools.cache(policy.parse_file_contents)


def _parsed(data: str) -> dict[str, str]:
    return dict(_parse(data))


def _schema(original: Callable[..., None]) -> Callable[..., None]:
    """Placement finds its tables, traits and resource classes, and need not make them one by one."""
    def generate(this: Any, engine: Any) -> None:
        if "placement" in _schemas:
            with engine.connect() as connection:
                connection.connection.executescript(_schemas["placement"])
        original(this, engine)
        if "placement" not in _schemas:
            with engine.connect() as connection:
                _schemas["placement"] = "".join(connection.connection.iterdump())
    return generate
