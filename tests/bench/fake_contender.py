"""A contender that runs nothing and claims fixed times: so many seconds a token."""

import os
import sys

from bench.peers.worker import Times, serve


class FakeContender:
    def __init__(self, token_s: float) -> None:
        self._token_s = token_s

    def start(self) -> tuple[int, dict[str, str]]:
        print("a library that prints where it should not", flush=True)
        return os.getpid(), {"version": "1"}

    def load(self, source: str, threads: int, context: int) -> dict[str, str]:
        if context == 0:
            raise ValueError("no room")
        return {"threads": str(threads)}

    def generate(self, ids: list[int], steps: int) -> Times:
        if ids == [0]:
            os._exit(3)
        prefill_s = len(ids) * self._token_s
        return {"prefill_s": prefill_s, "ttft_s": prefill_s + self._token_s, "decode_s": steps * self._token_s}

    def stop(self) -> None:
        pass


if __name__ == "__main__":
    serve(FakeContender(float(sys.argv[1])))
