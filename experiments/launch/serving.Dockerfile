# Image that serves models without tensorflow; docs/production.md has the commands. JAX=jax[cuda12] is for GPUs.
FROM python:3.12-slim
ARG JAX=jax
WORKDIR /app
COPY . .
RUN pip install --no-cache-dir -c constraints.txt "$JAX" flax optax orbax-checkpoint ml-collections tensorboardX tokenizers sentencepiece safetensors jinja2 starlette uvicorn prometheus-client
RUN pip install --no-cache-dir --no-deps .
# Compiled programs are kept in a volume, whose owner is that of the directory.
RUN useradd --uid 10001 --create-home bertjax && install --directory --owner=bertjax /home/bertjax/.cache
USER 10001
WORKDIR /home/bertjax
EXPOSE 8000
HEALTHCHECK --start-period=10m CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/ready')"]
ENTRYPOINT ["bertjax", "serve", "--host", "0.0.0.0"]
