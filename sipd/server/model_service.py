"""ModelService: what is served, its limits, and its tokenizer. Answered without the engine's thread."""

from __future__ import annotations

import asyncio

from sipd.engine.sampling import MAX_LOGIT_BIASES, MAX_LOGPROBS
from sipd.errors import InvalidRequest
from sipd.server.options import DEFAULT_MAX_TOKENS
from sipd.server.served_model import ServedModel
from sipd.server.service_state import ServiceState
from sipd.text.stop import MAX_STRING_BYTES, MAX_STRINGS
from sipd.v1 import model_pb2 as pb

_MAX_DETOKENIZE_IDS = 32768  # a quarter of a megabyte of text; one call at a time


class ModelService:
    """Serves GetModel, ListModels, Tokenize and Detokenize; owned by the event loop's thread."""

    def __init__(self, state: ServiceState) -> None:
        self._state = state
        self._one_detokenize = asyncio.Lock()

    async def get_model(self, message: pb.GetModelRequest) -> pb.GetModelResponse:
        """Returns the description of the model; raises NotFound."""
        served = self._state.require_served(message.model if message.HasField("model") else None)
        return pb.GetModelResponse(model=self._describe(served))

    async def list_models(self, _message: pb.ListModelsRequest) -> pb.ListModelsResponse:
        """Returns the one model that is served."""
        return pb.ListModelsResponse(models=[self._describe(self._state.require_served())])

    async def tokenize(self, message: pb.TokenizeRequest) -> pb.TokenizeResponse:
        """Returns the ids of a text, as Generate would run them."""
        self._state.require_served(message.model if message.HasField("model") else None)
        ids = await self._state.prompt_reader().encode(
            message.text,
            add_special=message.add_special_tokens if message.HasField("add_special_tokens") else True,
            parse_special=message.parse_special_tokens,
            field="text",
        )
        return pb.TokenizeResponse(ids=ids)

    async def detokenize(self, message: pb.DetokenizeRequest) -> pb.DetokenizeResponse:
        """Returns the text of ids."""
        served = self._state.require_served(message.model if message.HasField("model") else None)
        if served.text is None:
            raise InvalidRequest("ids", "the model came without tokenizer files: there is no text")
        if len(message.ids) > _MAX_DETOKENIZE_IDS:
            raise InvalidRequest("ids", f"found {len(message.ids)}, wanted at most {_MAX_DETOKENIZE_IDS}")
        vocab_size = served.engine.vocab_size
        for token_id in message.ids:
            if token_id >= vocab_size:
                raise InvalidRequest("ids", f"token id {token_id} is outside the vocabulary of {vocab_size}")
        async with self._one_detokenize:
            text = await asyncio.to_thread(served.text.decode, tuple(message.ids))
        return pb.DetokenizeResponse(text=text)

    def _describe(self, served: ServedModel) -> pb.Model:
        text, engine, config = served.text, served.engine, self._state.config
        return pb.Model(
            name=served.name,
            architecture=served.architecture,
            quants=[pb.QuantShare(type=q.type_name, n_tensors=q.n_tensors, bytes=q.n_bytes) for q in served.quants],
            n_layers=served.n_layers,
            context_tokens=engine.context_tokens,
            trained_context_tokens=served.trained_context_tokens,
            vocab_size=engine.vocab_size,
            end_token_ids=[] if text is None else sorted(text.end_ids),
            files=[pb.ModelFile(name=f.name, bytes=f.n_bytes, header_sha256=f.header_sha256) for f in served.files],
            limits=pb.Limits(
                max_prompt_bytes=served.max_prompt_bytes,
                max_request_bytes=self._state.max_request_bytes(),
                max_active=config.max_requests,
                max_queued=config.max_queued,
                max_rows_per_pass=engine.rows_per_pass,
                max_stop_strings=MAX_STRINGS,
                max_stop_string_bytes=MAX_STRING_BYTES,
                max_logprobs=MAX_LOGPROBS,
                max_logit_biases=MAX_LOGIT_BIASES,
                default_max_tokens=DEFAULT_MAX_TOKENS,
                max_requests_per_client=config.max_requests_per_client,
                max_sessions=config.max_sessions if config.prefix_cache else 0,
            ),
            capabilities=pb.Capabilities(
                has_chat_template=text is not None and text.has_chat_template,
                accepts_text=text is not None,
                arithmetic_contract=engine.arithmetic_contract,
                isa=engine.isa,
                has_prefix_cache=config.prefix_cache,
                has_speculation=config.speculation,
                has_draft_model=config.speculation and config.draft_model is not None,
            ),
        )
