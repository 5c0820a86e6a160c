"""What an alert looks like to who receives it: our own JSON, Slack's, or PagerDuty's.

A body never holds more than the alert says, and never exceeds what the receiver takes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

Body = Callable[[Mapping[str, Any]], Mapping[str, Any]]

# Slack: "Reference: Message payloads" advises 4,000 characters of text; the rest would be cut.
MAX_SLACK_CHARS = 4000
# PagerDuty, "PD-CEF": a summary is cut at 1,024 characters, a deduplication key at 255.
MAX_SUMMARY_CHARS = 1024
MAX_KEY_CHARS = 255


def plain(alert: Mapping[str, Any]) -> Mapping[str, Any]:
    """The alert as it is: the fields of `Alert`."""
    return alert


def slack(alert: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message for Slack's incoming webhooks (and who understands those, Mattermost for one)."""
    lines = [f"*{_mrkdwn(alert['severity'])}* {_mrkdwn(alert['summary'])}"]
    place = _place(alert)
    if place:
        lines.append(_mrkdwn(place))
    if alert.get("next_command"):
        lines.append(f"`{_mrkdwn(alert['next_command'])}`")
    return {"text": "\n".join(lines)[:MAX_SLACK_CHARS]}


def pagerduty(routing_key: str) -> Body:
    """Bodies for PagerDuty's Events API v2 (`https://events.pagerduty.com/v2/enqueue`).

    Alerts of one run and key become one incident there.
    """

    def body(alert: Mapping[str, Any]) -> Mapping[str, Any]:
        run = str(alert.get("run") or "training run")
        return {
            "routing_key": routing_key,
            "event_action": "trigger",
            "dedup_key": f"{run}/{alert['key']}"[:MAX_KEY_CHARS],
            "payload": {
                "summary": str(alert["summary"])[:MAX_SUMMARY_CHARS],
                "source": run,
                "severity": alert["severity"],
                "component": "spiketriage",
                "custom_details": dict(alert),
            },
        }

    return body


def encoded(body: Body, message: bytes) -> bytes:
    """The body of one message (an alert as JSON), ready to be sent."""
    return json.dumps(body(json.loads(message))).encode()


def _mrkdwn(text: object) -> str:
    """Slack's three special characters, escaped; a backtick would end the command's quotes."""
    escaped = str(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return escaped.replace("`", "'")


def _place(alert: Mapping[str, Any]) -> str:
    named = [("run", alert.get("run")), ("step", alert.get("step")), ("rank", alert.get("rank"))]
    return ", ".join(f"{name} {value}" for name, value in named if value not in (None, ""))
