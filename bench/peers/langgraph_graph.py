"""A graph of one model node for LangGraph's development server, as its manual shows it. It runs in `.venv-bench`.

The server (`langgraph dev`) keeps threads and checkpoints in memory, and writes them to a file now and then.
"""

from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph

_model = ChatOpenAI(model="bench", streaming=True, use_responses_api=False)


async def _answer(state: MessagesState) -> dict[str, object]:
    return {"messages": [await _model.ainvoke(state["messages"])]}


_builder = StateGraph(MessagesState)
_builder.add_node("answer", _answer)
_builder.add_edge(START, "answer")
graph = _builder.compile()
