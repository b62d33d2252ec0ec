"""What your tests of extensions of LakeSync stand on: contract suites that ship."""
