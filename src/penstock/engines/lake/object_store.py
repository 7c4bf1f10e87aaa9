"""Settings of an object store, as Hadoop spells them, and the same for other libraries.

Hadoop's names stand without `fs.s3a.`. Workers read them for pyarrow (`storage.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

S3A = "spark.hadoop.fs.s3a."
SCHEMES = ("s3:", "s3a:", "s3n:")

_ICEBERG: Mapping[str, str] = {
    "endpoint": "s3.endpoint",
    "endpoint.region": "client.region",
    "access.key": "s3.access-key-id",
    "secret.key": "s3.secret-access-key",
    "session.token": "s3.session-token",
    "path.style.access": "s3.path-style-access",
}
_PATH_STYLE = "path.style.access"

CHECK_DISK = "Check that the storage answers, and that this account may read and write there."
_CHECK_BUCKET = "Create the bucket, or name another one."
_CHECK_KEYS = (
    f"Check {S3A}access.key and secret.key below [spark.conf], or AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY in the environment, and that the account may read and write there."
)
_CHECK_ENDPOINT = f"Check {S3A}endpoint below [spark.conf]: nothing answers there."

_HINTS: Mapping[str, str] = {
    "NO_SUCH_BUCKET": _CHECK_BUCKET,
    "NoSuchBucket": _CHECK_BUCKET,
    "bucket does not exist": _CHECK_BUCKET,
    "UnknownStoreException": _CHECK_BUCKET,
    "INVALID_ACCESS_KEY_ID": _CHECK_KEYS,
    "InvalidAccessKeyId": _CHECK_KEYS,
    "SIGNATURE_DOES_NOT_MATCH": _CHECK_KEYS,
    "SignatureDoesNotMatch": _CHECK_KEYS,
    "ACCESS_DENIED": _CHECK_KEYS,
    "AccessDenied": _CHECK_KEYS,
    "HTTP status 403": _CHECK_KEYS,
    "Status Code: 403": _CHECK_KEYS,
    "NoAuthWithAWS": _CHECK_KEYS,
    "Unable to load credentials": _CHECK_KEYS,
    "NETWORK_CONNECTION": _CHECK_ENDPOINT,
    "curlCode": _CHECK_ENDPOINT,
    "Connection refused": _CHECK_ENDPOINT,
    "UnknownHostException": _CHECK_ENDPOINT,
}
"""Hints by a part of a message of pyarrow or of Java."""


def is_on_s3(location: str) -> bool:
    """Return whether a location is in an object store."""
    return location.startswith(SCHEMES)


def address_of(settings: Mapping[str, str]) -> str:
    """Return the endpoint as a URL; empty if none is set."""
    endpoint = settings.get("endpoint", "")
    if not endpoint or "://" in endpoint:
        return endpoint
    is_plain = settings.get("connection.ssl.enabled", "true").lower() == "false"
    return f"{'http' if is_plain else 'https'}://{endpoint}"


def complete_settings(given: Mapping[str, str], catalogue: Mapping[str, str]) -> dict[str, str]:
    """Return settings with those of an Iceberg catalogue, and with buckets in the path.

    Servers other than Amazon's seldom have a host name for each bucket.

    Args:
        given: as Hadoop spells them; they win.
        catalogue: the catalogue's properties.
    """
    of_catalogue = {new: catalogue[old] for new, old in _ICEBERG.items() if old in catalogue}
    found = {**of_catalogue, **given}
    endpoint = found.get("endpoint", "")
    if endpoint and "amazonaws.com" not in endpoint:
        found.setdefault(_PATH_STYLE, "true")
    return found


def iceberg_properties(
    settings: Mapping[str, str], properties: Mapping[str, str]
) -> dict[str, str]:
    """Return a catalogue's properties with those by which Iceberg reaches the object store.

    The catalogue's own ones win.
    """
    added = {new: settings[old] for old, new in _ICEBERG.items() if old in settings}
    if address := address_of(settings):
        added["s3.endpoint"] = address
    return {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO", **added, **properties}


def spark_properties(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the properties by which Spark's Hadoop classes reach the object store."""
    return {f"{S3A}{name}": value for name, value in settings.items()}


def hint_of(message: str) -> str:
    """Return what to do after a message of an object store's library."""
    return next((hint for part, hint in _HINTS.items() if part in message), CHECK_DISK)
