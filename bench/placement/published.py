# SPDX-License-Identifier: Apache-2.0
"""Results of "Convergence of HPC, Big Data and ML applications on containerized infrastructures", section 6.4."""

MAKESPAN = {"Kubeflow-like": 2520.0, "Volcano-like": 123055.0, "affinity": 2529.0, "scale+groups": 2498.0,
            "granularity+groups": 2258.0}
"""Table 6.3, in seconds."""

RESPONSE = {"scale+groups": (-0.16, -0.32), "granularity+groups": (-0.19, -0.35)}
"""Change of the overall response time of 20 mixed jobs, against affinity only and against none."""

MAKESPAN_CHANGE = {"scale+groups": (-0.01, -0.26), "granularity+groups": (-0.11, -0.34)}
"""Change of the makespan of the same jobs, against the same."""

CPU_BOUND = {"scale+groups": (-0.05, -0.26), "granularity+groups": (-0.15, -0.34)}
"""Change of the response time of ten CPU-bound jobs, against the same."""
