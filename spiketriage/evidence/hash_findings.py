"""The findings of `spiketriage hash`: their names, and what each may do to a verdict.

It stands apart from the code that measures, so that who only asks which command tests a finding
need not enter that; it never measures anything.
"""

from __future__ import annotations

from spiketriage.diagnosis.role import AGAINST_THE_RUN, TESTS_CAUSES, Emission

INDEX_IDENTITY = "index-identity"
SHARD_DIGESTS = "shard-digests"
GENERATION_DIGESTS = "generation-digests"
# Bytes at rest say nothing of when the run went wrong, so none of them dates the onset. A damaged
# generation harms the next rollback, whatever caused this incident.
EMITS = {
    INDEX_IDENTITY: Emission(role=TESTS_CAUSES),
    SHARD_DIGESTS: Emission(role=TESTS_CAUSES),
    GENERATION_DIGESTS: Emission(role=AGAINST_THE_RUN),
}
