# syntax=docker/dockerfile:1
# The images of `cargo xtask images`, for those who have a builder: docker build --target zeroproxy .
# Targets: agent-cni-installer, zeroproxy, agent-network-controller.

FROM rust:1.95-trixie AS build
RUN apt-get update && apt-get install -y --no-install-recommends musl-tools && rm -rf /var/lib/apt/lists/*
WORKDIR /agent-network
COPY . .
# The eBPF object first: the programs have it in them.
RUN cargo xtask build-ebpf
RUN set -e; target="$(uname -m)-unknown-linux-musl"; rustup target add "$target"; \
    CC=musl-gcc CARGO_PROFILE_RELEASE_STRIP=debuginfo cargo build --release --locked --bins --target "$target" \
      -p agent-cni -p agent-node -p agent-controller; \
    mkdir /out; for program in agent-cni agent-node agent-controller; do cp "target/$target/release/$program" /out/; done

FROM debian:trixie-slim AS agent-cni-installer
# Both backends of iptables are in one package.
RUN apt-get update && apt-get install -y --no-install-recommends iptables ipset && rm -rf /var/lib/apt/lists/*
COPY --from=build /out/agent-cni /agent-cni
ENTRYPOINT ["/agent-cni"]
CMD ["install"]

FROM scratch AS zeroproxy
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/agent-node /agent-node
ENTRYPOINT ["/agent-node"]
CMD ["zeroproxy"]

FROM scratch AS agent-network-controller
COPY --from=build /out/agent-controller /agent-controller
USER 65532:65532
ENTRYPOINT ["/agent-controller"]
CMD ["run"]
