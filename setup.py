"""Install the configurations of `experiments`, which pyproject.toml cannot express."""

import setuptools

setuptools.setup(
    packages=[
        *setuptools.find_packages(include=["bertjax*", "data_pipelines*"]),
        "bertjax.experiments",  # its own files alone, which are the configurations
    ],
    package_dir={"bertjax.experiments": "experiments"},
)
