# How `sam build` makes the layers: one target for each logical id of template.yaml.
#
# SAM hands no template parameter to make, but it resolves the parameters in a resource's Metadata:
# so `ContextPath: !Sub layers/runtimes/${PythonRuntime}` chooses the folder whose Makefile includes
# this one, and the folder's name says which Python to build for. Build and deployment cannot differ.

here := $(dir $(realpath $(lastword $(MAKEFILE_LIST))))
runtime := $(notdir $(patsubst %/,%,$(dir $(realpath $(firstword $(MAKEFILE_LIST))))))
build := python3 "$(here)build_layer.py" --runtime $(runtime) --into "$(ARTIFACTS_DIR)"

.PHONY: build-LakesyncLayer build-WebLayer build-CryptoLayer build-LakeLayer

# The Glue job runs the same library, so its script is bundled with it: docs/adr/0003.
build-LakesyncLayer:
	$(build) --name lakesync --package "$(here)lakesync/python/lakesync"
	python3 "$(here)bundle_job.py"

build-WebLayer:
	$(build) --name web

build-CryptoLayer:
	$(build) --name crypto

build-LakeLayer:
	$(build) --name lake
