"""The commands `penstock ignite ...`; see `ports.commands.EngineCommands`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from penstock.model.segment_order import QUESTION
from penstock.ports.commands import Command, Done, Option
from penstock.ports.config import Config
from penstock.ports.registry import split_urls

Values = Mapping[str, str | None]


def _delete_lost(config: Config, values: Values, _: Sequence[str]) -> Iterator[Done]:
    from penstock.engines.ignite.lost import delete_lost

    return delete_lost(config.source.url, values["node_id"])


def _resend(config: Config, values: Values, more: Sequence[str]) -> Iterator[Done]:
    from penstock.engines.ignite.commands import resend
    from penstock.engines.ignite.url import IgniteUrl

    nodes = [IgniteUrl.parse(one) for one in split_urls(config.source.url)]
    addresses = [address for node in nodes for address in node.addresses]
    return resend(addresses, values["caches"] or "", values["control"], more)


COMMANDS = (
    Command(
        name="delete-lost-segment-links",
        help="Let the consumers of a node continue after the last hole in its CDC directory.\n\n"
        "Of segments 2, 3, 8, 10 and 11 it deletes 2, 3 and 8, and with them the saved state: "
        "their unread changes are lost to consumers. The same as control.sh --cdc "
        "delete_lost_segment_links, for only the node's directory; no node has to run.",
        example="node.toml --yes",
        exit_codes="0 done, or there was no hole; 1 an error, or the answer was no; 2 wrong usage",
        question=QUESTION,
        options=(
            Option(
                name="--node-id",
                metavar="ID",
                help="The consistent id of one node, if the work directory has several.",
            ),
        ),
        run=_delete_lost,
    ),
    Command(
        name="resend",
        help="Make the cluster write all rows of caches into its log once more.\n\n"
        "Runs control.sh --cdc resend, at address= of url if it has one, and prints "
        "its output. Consumers get every row as a put with its version: of two changes of a key, "
        "the one with the greater version is the later one.",
        example="node.toml --caches person,SQL_PUBLIC_CITY",
        exit_codes="0 done, 1 control.sh failed, 2 wrong usage",
        options=(
            Option(name="--caches", metavar="A,B", help="The caches.", is_required=True),
            Option(
                name="--control",
                metavar="PATH",
                help="Path of control.sh. Default: $IGNITE_HOME/bin/control.sh.",
            ),
        ),
        more="of control.sh itself, such as --host, --port, --user and --password",
        run=_resend,
    ),
)
