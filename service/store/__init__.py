"""The truth: records, atomic transitions, event streams and leases, in Redis.

Every state change is one Lua script (`lua/`), so nothing is ever half done; the table of allowed changes is
`contracts.TRANSITIONS`, generated into the scripts. Whatever Redis does wrong leaves here as `errors.Unavailable`.

Key map. Every key starts with the deployment's prefix (`patchyard:`); `T` = `task:<id>`.

| key                     | kind   | holds                                           | kept                           |
|-------------------------|--------|-------------------------------------------------|--------------------------------|
| T                       | hash   | the Task's fields; seq, fence, cancel, rank, …  | 30 days after its end (sweep)  |
| T:events                | stream | the live tail: id `<seq>-0`, t (ms), k, d       | with T                         |
| T:segments              | zset   | JSON {first, last, sha256} by last seq          | with T, and its blobs          |
| T:artifacts             | hash   | name → JSON {sha256, size}                      | with T                         |
| T:sealed                | string | what `seal.py` made of the task's secrets       | until the task ends            |
| queue                   | zset   | queued task ids by `rank`, their arrival        | while queued                   |
| arrivals                | string | the counter behind `rank`                       | one                            |
| leases                  | zset   | running task ids by the ms their lease ends     | while running                  |
| finished                | hash   | exit_reason → how many tasks ever ended so      | one, a field per reason        |
| retention               | zset   | ended task ids by the ms they are forgotten     | with T                         |
| tasks:<team>            | zset   | all its task ids at score 0; ULIDs sort by age  | with each T                    |
| ws:<team>:<id>          | string | JSON Workspace                                  | 30 days after its last use     |
| uploads:<team>:<sha256> | string | its id                                          | with it                        |
| teams                   | set    | team names                                      | until an operator removes one  |
| key:<sha256>            | string | JSON Key, by the hash of its secret             | until revoked                  |
| keys:<team>             | hash   | key id → that hash                              | until revoked                  |
| admin                   | string | hash of the configured admin secret             | one                            |
| catalogues              | hash   | host → JSON Catalogue                           | the last ever; others 30 days  |
| keepers, workers        | zset   | hosts, workers by the ms their heartbeat ends   | 30 s                           |
| keeper:<host>           | string | JSON, what its keeper says of the engine        | 30 s                           |
"""

from __future__ import annotations

from service.store.accounts import Accounts
from service.store.connection import BlobStore
from service.store.events import EventRecord
from service.store.fleet import Counters, Fleet
from service.store.runs import Artifact, Lease, Runs, RunSignals, SweepReport
from service.store.tasks import Tasks
from service.store.workspaces import Workspaces

__all__ = [
    "Artifact",
    "BlobStore",
    "Counters",
    "EventRecord",
    "Lease",
    "RunSignals",
    "Store",
    "SweepReport",
]


class Store(Accounts, Workspaces, Tasks, Runs, Fleet):
    """One object for the whole truth, made by `Store.connect`; each duty is its own module.

    Safe to share between threads, and usable after a fork (redis-py opens new connections there).
    """
