# Each command does all its own set-up and may be repeated; see README.md.
.PHONY: help run test lint unit molecule docs bench check-builds probe-model clean

help: ## This list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 14

run: ## A sandbox host with a small real model, deployed and verified, and one answer from it
	@tools/run

test: ## Everything that CI runs
	@tools/test lint unit docs molecule

lint: ## Linters and type checks
	@tools/test lint

unit: ## Unit tests
	@tools/test unit

molecule: ## Scenarios on real systemd hosts
	@tools/test molecule

docs: ## Write the generated reference pages anew
	@tools/docs

bench: ## Measurements, with their peers in the same run
	@tools/bench

check-builds: ## The runtimes for cards with real toolchains, as far as a machine without cards goes
	@tools/check-builds

probe-model: ## Train and check the scenarios' model anew, outside CI (tests/fixtures/probe_model)
	@tools/probe-model

clean: ## Remove hosts, images and caches that this project made, and nothing else
	@tools/clean
