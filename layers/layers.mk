# How `sam build` makes the layers: one target for each logical id of template.yaml.
#
# SAM hands no template parameter to make, but it resolves the parameters in a resource's Metadata:
# so `ContextPath: !Sub layers/runtimes/${PythonRuntime}/${Architecture}` chooses the folder whose
# Makefile includes this one, and the folder's path says which Python and which processors to build
# for. Build and deployment cannot differ.

here := $(dir $(realpath $(lastword $(MAKEFILE_LIST))))
chosen := $(patsubst %/,%,$(dir $(realpath $(firstword $(MAKEFILE_LIST)))))
architecture := $(notdir $(chosen))
runtime := $(notdir $(patsubst %/,%,$(dir $(chosen))))
build := python3 "$(here)build_layer.py" --runtime $(runtime) --architecture $(architecture) \
	--into "$(ARTIFACTS_DIR)"

.PHONY: build-LakesyncLayer build-WebLayer build-CryptoLayer build-LakeLayer build-IcebergLayer \
	build-DriversLayer build-GoogleLayer

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

build-IcebergLayer:
	$(build) --name iceberg

build-DriversLayer:
	$(build) --name drivers

build-GoogleLayer:
	$(build) --name google
