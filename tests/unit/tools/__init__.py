"""The tools' parts that can be tried without a cloud; tools/demo itself tries the rest."""
