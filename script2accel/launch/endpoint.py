"""The form of what a launch command names: host, port and rank. Nothing is resolved or contacted."""

from __future__ import annotations

import ipaddress
import re

_LABEL = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)", re.ASCII)
PORT = 29500  # Accelerate's own default (utils/launch.py)


def host_fault(host: str) -> str:
    """What is wrong with a host's form (an IPv4 or IPv6 address, or a name); empty when nothing is."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        return ""
    labels = host.rstrip(".").split(".")
    if not host or len(host) > 253 or not all(map(_LABEL.fullmatch, labels)):
        return f"{host!r} is no IP address and no host name"
    if labels[-1].isdigit():
        return f"{host!r} looks like an IP address and is none"
    return ""


def port_fault(port: int, *, machines: int = 1) -> str:
    """What is wrong with a port; 0 (any free one) works on one machine alone."""
    if port == 0 and machines > 1:
        return "port 0 lets one machine choose, and the others would not know it; give a number from 1 to 65535"
    return "" if 0 <= port <= 65535 else f"{port} is no port; give a number from 1 to 65535"


def rank_fault(rank: int, machines: int) -> str:
    """What is wrong with a machine's rank."""
    return "" if 0 <= rank < machines else f"machine rank {rank} is not within 0 to {machines - 1}"
